package core

// ParseOwner parses the value of [OwnerAnnotation].
var ParseOwner = parseOwner

// ErrInvalidManager is the error of a name that is no manager.
var ErrInvalidManager = errInvalidManager

// ErrInvalidOwner is the error of a malformed owner.
var ErrInvalidOwner = errInvalidOwner

// ErrInvalidObject is the error of bytes that are no object.
var ErrInvalidObject = errInvalidObject

// SpecChanged and StatusChanged are the two parts of [Changed].
var (
	SpecChanged   = specChanged
	StatusChanged = statusChanged
)

// NewestObject returns the newest state of a change.
var NewestObject = (*Change).newest
