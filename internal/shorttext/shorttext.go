// Package shorttext bounds texts that come from elsewhere, before they are logged, stored or put in
// a status.
package shorttext

import "strings"

// Most bounds texts, in bytes. The message of a condition has at most 32,768 bytes.
const Most = 4000

// Cut truncates a text to most bytes, and replaces the rest with an ellipsis. The result does not
// keep the text in memory.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// Error returns err, or an error with a text of at most [Most] bytes that wraps err.
func Error(err error) error {
	if err == nil || len(err.Error()) <= Most {
		return err
	}
	return short{err}
}

type short struct{ error }

func (s short) Error() string { return Cut(s.error.Error(), Most) }

func (s short) Unwrap() error { return s.error }
