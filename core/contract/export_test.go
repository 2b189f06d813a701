package contract

// Names for the tests of this package.
var (
	ErrUnknownVersion = errUnknownVersion
	ErrMalformed      = errMalformed
)
