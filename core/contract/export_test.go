package contract

// ErrUnknownVersion means that this package does not know a contract.
var ErrUnknownVersion = errUnknownVersion
