// Package coretest holds what every adapter of a port in core must pass, and what tests of their users need.
//
// [TestForwarder] and [TestVerifier] are conformance suites: an adapter calls them from one of its own tests.
// [Recorder] is the far end of everything: it writes down what arrives, and answers as its script says. [Memory] is the
// forwarder that passes first.
package coretest
