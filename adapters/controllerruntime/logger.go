package controllerruntime

import (
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/runtime-watcher/runtime-watcher/listener/statuspage"
)

// defaultLogger writes to the logger that an operator gives to controller-runtime, ctrl.Log, which
// is also the default of its controller manager.
func defaultLogger() *slog.Logger { return Logger(log.Log) }

// Logger returns a slog logger that writes to the logr logger of an operator, such as
// mgr.GetLogger() or ctrl.Log. Debug lines need verbosity 4 in that logger (see
// [logr.ToSlogHandler]).
func Logger(logger logr.Logger) *slog.Logger { return slog.New(logr.ToSlogHandler(logger)) }

// BrowserFilter lets a browser log in at a FilterProvider of [server.Options] that checks bearer
// tokens, such as filters.WithAuthenticationAndAuthorization of controller-runtime. The browser
// asks for a password: enter the token, for example from `kubectl create token`. Requests that pass
// the filter count as authenticated for a [statuspage.FleetHandler] among the extra handlers.
// BrowserFilter panics if provider is nil.
func BrowserFilter(
	provider func(*rest.Config, *http.Client) (server.Filter, error),
) func(*rest.Config, *http.Client) (server.Filter, error) {
	if provider == nil {
		panic("controllerruntime: provider of a filter is nil")
	}
	return func(config *rest.Config, client *http.Client) (server.Filter, error) {
		filter, err := provider(config, client)
		if err != nil {
			return nil, err
		}
		return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
			filtered, err := filter(log, statuspage.Authenticated(handler))
			if err != nil {
				return nil, err
			}
			return statuspage.BrowserLogin(filtered), nil
		}, nil
	}
}
