package lab

import "testing"

// NoError ends the test if there is an error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns the value of a call that does not fail in a test.
func Must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Complaints counts the problems that a check reports, and fails no test: it shows that the check can fail.
type Complaints struct {
	testing.TB

	N int
}

// Helper implements [testing.TB].
func (*Complaints) Helper() {}

// Error implements [testing.TB].
func (c *Complaints) Error(...any) { c.N++ }

// Errorf implements [testing.TB].
func (c *Complaints) Errorf(string, ...any) { c.N++ }
