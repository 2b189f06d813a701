package controllerruntime

import "github.com/runtime-watcher/runtime-watcher/core"

// Several returns the handler for several controllers of one manager.
func Several(handlers ...core.Handler) core.Handler { return severalHandlers(handlers).handler() }
