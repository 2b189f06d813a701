package core

// ParseOwner parses the value of [OwnerAnnotation].
var ParseOwner = parseOwner

// ErrInvalidOwner is the error of a malformed owner.
var ErrInvalidOwner = errInvalidOwner
