// Package gateway detects the answers of a gateway in front of a listener.
package gateway

import (
	"errors"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// Denied reports whether a gateway answered 403 before a listener saw the request. The gateway may
// deny the sender, or only the path of one contract. Other refusals of a gateway, such as a page of
// nginx about a client certificate, never depend on the path.
func Denied(err error) bool {
	return core.ReasonOf(err) == reasons.GatewayRefused && errors.Is(err, core.ErrForbidden)
}
