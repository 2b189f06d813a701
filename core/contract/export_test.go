package contract

// ErrUnknownVersion means that this package does not know a contract.
var ErrUnknownVersion = errUnknownVersion

// ErrMalformed means that a body or an event does not follow its contract.
var ErrMalformed = errMalformed

// Partial returns the answer that names the refused elements of a request.
var Partial = partialAnswer
