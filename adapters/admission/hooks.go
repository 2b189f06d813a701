package admission

import "github.com/runtime-watcher/runtime-watcher/core/hook"

// Hooks are optional callbacks of a handler. They are called concurrently while the API server
// waits and must return immediately. A panic in a hook is recovered and reported to Panicked.
type Hooks struct {
	// InFlight is called with 1 when a request begins and with -1 when it has ended.
	InFlight func(delta int)
	// Reviewed is called for each answered review.
	Reviewed func(hook.Review)
	// Refused is called for each request that is answered with a status other than 200.
	Refused func(hook.Refusal)
	// OwnerProblem is called for an object with a malformed owner annotation. If
	// [Options].RequireOwner is set, it is also called for an object without an owner.
	OwnerProblem func(hook.OwnerProblem)
	// Panicked is called for each recovered panic.
	Panicked func(hook.Panic)
}
