package coremock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/mock/gomock"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coremock"
)

func demo(name string) core.WatchEvent {
	return core.WatchEvent{Watched: types.NamespacedName{Namespace: "default", Name: name}, Time: time.Now(), TraceParent: name}
}

func TestEventIgnoresTimeAndTrace(t *testing.T) {
	want := coremock.Event(demo("a"))
	same := demo("a")
	other := demo("b")
	for name, c := range map[string]struct {
		got     any
		matches bool
	}{
		"same":        {same, true},
		"its pointer": {&same, true},
		"another":     {other, false},
		"nil":         {(*core.WatchEvent)(nil), false},
		"no event":    {"a", false},
	} {
		if got := want.Matches(c.got); got != c.matches {
			t.Errorf("%s: matches %v, want %v", name, got, c.matches)
		}
	}
}

// reporter keeps the message of a failed expectation.
type reporter struct{ message string }

func (r *reporter) Errorf(format string, args ...any) { r.message += fmt.Sprintf(format, args...) }
func (r *reporter) Fatalf(format string, args ...any) { r.Errorf(format, args...); panic(r) }

func TestAFailedExpectationNamesTheDifference(t *testing.T) {
	failed := &reporter{}
	outbox := coremock.NewMockAcceptor(gomock.NewController(failed))
	outbox.EXPECT().Accept(core.Manager("kyma"), coremock.Event(demo("a")))
	func() {
		defer func() { _ = recover() }()
		outbox.Accept("kyma", demo("b"))
	}()

	// go-cmp puts a blank between the sign and the line, of varying width.
	lines := strings.Join(strings.Fields(failed.message), " ")
	for _, want := range []string{`- Name: "a"`, `+ Name: "b"`} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %s in\n%s", want, failed.message)
		}
	}
}

// A unit test of a change source expects its events.
func ExampleEvent() {
	t := &reporter{} // A test has its own t.
	outbox := coremock.NewMockAcceptor(gomock.NewController(t))
	outbox.EXPECT().
		Accept(core.Manager("my-operator"), coremock.Event(core.WatchEvent{Resync: true})).
		Return(core.Accepted)
	fmt.Println(outbox.Accept("my-operator", core.WatchEvent{Resync: true, Time: time.Now()}))
	// Output: accepted
}

// Every port has a mock with its current signature.
var (
	_ core.Acceptor  = (*coremock.MockAcceptor)(nil)
	_ core.Forwarder = (*coremock.MockForwarder)(nil)
	_ core.Verifier  = (*coremock.MockVerifier)(nil)
	_ core.Handler   = (*coremock.MockHandler)(nil)
)

// A mock takes the place of a port. Here an operator refuses a delivery.
func Example() {
	t := &reporter{} // A test has its own t.
	operator := coremock.NewMockHandler(gomock.NewController(t))
	operator.EXPECT().Handle(gomock.Any(), gomock.Any()).Return(core.ErrNotReady)
	fmt.Println(operator.Handle(context.Background(), core.Delivery{Runtime: "runtime-1"}))
	// Output: not ready
}
