package controllerruntime_test

import (
	"testing"

	"github.com/go-logr/logr/funcr"
	"go.uber.org/goleak"
	ctrl "sigs.k8s.io/controller-runtime"
)

// defaultLog is that of controller-runtime, which a process sets once.
var defaultLog records

func TestMain(m *testing.M) {
	ctrl.SetLogger(funcr.New(defaultLog.add, funcr.Options{}))
	goleak.VerifyTestMain(m)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
