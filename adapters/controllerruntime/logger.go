package controllerruntime

import (
	"log/slog"

	"github.com/go-logr/logr"
)

// Logger returns a logger that writes to the one of an operator, as mgr.GetLogger() and ctrl.Log are. Debug lines need
// verbosity 4 there (see [logr.ToSlogHandler]).
func Logger(logger logr.Logger) *slog.Logger { return slog.New(logr.ToSlogHandler(logger)) }
