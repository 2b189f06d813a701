package controllerruntime

import (
	"log/slog"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// defaultLogger writes to the logger that an operator gives to controller-runtime, ctrl.Log, which
// is also the default of its controller manager.
func defaultLogger() *slog.Logger { return Logger(log.Log) }

// Logger returns a logger that writes to that of an operator, such as mgr.GetLogger() or ctrl.Log.
// Debug lines need verbosity 4 there (see [logr.ToSlogHandler]).
func Logger(logger logr.Logger) *slog.Logger { return slog.New(logr.ToSlogHandler(logger)) }
