package informer

// ErrNotEstablished means that watches are not established.
var ErrNotEstablished = errNotEstablished
