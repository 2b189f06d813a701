package intake

import "github.com/runtime-watcher/runtime-watcher/core"

// ForRequest returns the verifier for the events of one batch, one after the other. A verifier that
// can remember verdicts has a method of that name. One that wraps another should have it, too.
func ForRequest(verifier core.Verifier) core.Verifier {
	if v, ok := verifier.(interface{ ForRequest() core.Verifier }); ok {
		return v.ForRequest()
	}
	return verifier
}
