package controllerruntime

import (
	"log/slog"

	"github.com/go-logr/logr"
)

// Logger returns a logger that writes to that of an operator, such as mgr.GetLogger() or ctrl.Log.
// Debug lines need verbosity 4 there (see [logr.ToSlogHandler]).
func Logger(logger logr.Logger) *slog.Logger { return slog.New(logr.ToSlogHandler(logger)) }
