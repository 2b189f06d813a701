package watcher

// ErrNoAddress means that a gateway has no host that agents could send to.
var ErrNoAddress = errNoAddress
