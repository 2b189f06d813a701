package httpmtls

// Error is the type of the errors of a [Forwarder], for the tests of its fields.
type Error = requestError
