package keys

import (
	"errors"
	"fmt"
	"time"
)

// Problem says why key material is not used. It is a metric label.
type Problem string

const (
	// ProblemUnreadable means that a file cannot be read. It is also the problem of every error
	// that has no other problem.
	ProblemUnreadable Problem = "unreadable"
	// ProblemEmpty means that a file contains no PEM blocks.
	ProblemEmpty Problem = "empty"
	// ProblemMalformed means that a file does not contain the expected kind of PEM blocks.
	ProblemMalformed Problem = "malformed"
	// ProblemMismatch means that the key belongs to another certificate.
	ProblemMismatch Problem = "mismatch"
	// ProblemExpired means that the certificate, or each CA of the bundle, has expired.
	ProblemExpired Problem = "expired"
	// ProblemNotYetValid means that the certificate, or each CA of the bundle, is not valid yet.
	ProblemNotYetValid Problem = "not_yet_valid"
)

// ProblemOf returns the problem of key material for the error of a [Source]. If the error of your
// own source has a method Reason() string, ProblemOf returns the result of that method. Otherwise
// it returns [ProblemUnreadable].
func ProblemOf(err error) Problem {
	var named interface{ Reason() string }
	if errors.As(err, &named) {
		return Problem(named.Reason())
	}
	return ProblemUnreadable
}

// materialError is a fault of one file with key material. Its text never contains key material.
type materialError struct {
	file    string // the path; for [NewMaterial] ca.crt, tls.crt or tls.key
	problem Problem
	err     error
	// from is the beginning of the validity, with [ProblemNotYetValid].
	from time.Time
}

func (e *materialError) Error() string {
	return fmt.Sprintf("keys: key material %s (%s): %v", e.file, e.problem, e.err)
}

func (e *materialError) Unwrap() error  { return e.err }
func (e *materialError) Reason() string { return string(e.problem) }

func malformed(file string, err error) error {
	return &materialError{file: file, problem: ProblemMalformed, err: err}
}

// validFrom returns when material becomes valid, for the error that it is not valid yet. It returns
// the zero time for any other error.
func validFrom(err error) (from time.Time) {
	if problem, ok := errors.AsType[*materialError](err); ok {
		from = problem.from
	}
	return from
}
