package outbox

// ErrStarted is what a second Start returns.
var ErrStarted = errStarted
