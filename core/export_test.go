package core

// Names for the tests of this package.
var (
	ParseOwner = parseOwner

	ErrInvalidManager = errInvalidManager
	ErrInvalidOwner   = errInvalidOwner
	ErrInvalidObject  = errInvalidObject

	SpecChanged   = specChanged
	StatusChanged = statusChanged
)
