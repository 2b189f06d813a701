package coremock_test

import (
	"context"
	"fmt"

	"go.uber.org/mock/gomock"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coremock"
)

// A mock takes the place of a port. Here an operator refuses a delivery.
func Example() {
	t := &reporter{} // A test has its own t.
	operator := coremock.NewMockHandler(gomock.NewController(t))
	operator.EXPECT().Handle(gomock.Any(), gomock.Any()).Return(core.ErrNotReady)

	fmt.Println(operator.Handle(context.Background(), core.Delivery{Runtime: "runtime-1"}))
	// Output: not ready
}
