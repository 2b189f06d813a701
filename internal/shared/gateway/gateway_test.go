package gateway_test

import (
	"errors"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/gateway"
)

func TestOnlyA403OfAGatewayIsADenial(t *testing.T) {
	tests := map[string]struct {
		err  error
		want bool
	}{
		"accepted": {nil, false},
		"403 of a gateway": {
			errors.Join(&reasons.Error{Text: "403", Label: reasons.GatewayRefused}, core.ErrForbidden), true,
		},
		"400 of a gateway":  {&reasons.Error{Text: "400", Label: reasons.GatewayRefused}, false},
		"403 of a listener": {errors.Join(&reasons.Error{Text: "403", Label: reasons.Revoked}, core.ErrForbidden), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := gateway.Denied(test.err); got != test.want {
				t.Errorf("denied: %t, want %t", got, test.want)
			}
		})
	}
}
