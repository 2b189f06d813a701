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
