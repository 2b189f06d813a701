package core

// ParseOwner parses the value of [OwnerAnnotation].
var ParseOwner = parseOwner

// ErrInvalidOwner is the error of a malformed owner.
var ErrInvalidOwner = errInvalidOwner

// ErrInvalidObject is the error of bytes that are no object.
var ErrInvalidObject = errInvalidObject
