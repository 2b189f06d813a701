// Package coretest holds the conformance suites for adapters of the ports in core, and fakes for
// tests.
//
// [TestForwarder], [TestReceiver] and [TestVerifier] are the suites: an adapter calls them from one
// of its own tests. [Recorder] is a far end: it records each batch and delivery, and answers as its
// script says.
package coretest
