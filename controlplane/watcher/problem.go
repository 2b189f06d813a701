package watcher

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/runtime-watcher/runtime-watcher/controlplane/api/v1beta2"
)

// routeProblem is the reason why a Watcher has no working route. It is not retried: only a change
// of an object that the controller watches can solve it.
type routeProblem struct{ reason, message string }

func (p *routeProblem) Error() string { return p.message }

func problem(reason, format string, args ...any) error {
	return &routeProblem{reason: reason, message: fmt.Sprintf(format, args...)}
}

type outcome struct {
	state           v1beta2.State
	status          metav1.ConditionStatus
	reason, message string
}

func failed(err error) (o outcome, again error) {
	o = outcome{state: v1beta2.StateError, status: metav1.ConditionFalse, reason: v1beta2.ReasonRouteRefused, message: err.Error()}
	var known *routeProblem

	switch {
	case errors.As(err, &known) && known.reason == v1beta2.ReasonRoutePending:
		o.state = v1beta2.StateProcessing
		o.status = metav1.ConditionUnknown
		o.reason = known.reason
	case errors.As(err, &known):
		o.reason = known.reason
	default:
		again = err
	}

	return o, again
}
