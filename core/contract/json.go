package contract

import (
	"encoding/json"
	"strconv"
	"time"
)

// The functions of this file append the members of a JSON object, byte for byte as encoding/json
// writes them. They append to the body itself, so that an event needs no memory of its own.

// appendName begins a member. The opening brace of the object, or another member, is before it.
func appendName(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, name...)
	return append(b, `":`...)
}

func appendString(b []byte, name, value string) []byte {
	return appendQuoted(appendName(b, name), value)
}

func appendOptional(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	return appendString(b, name, value)
}

func appendOptionalInteger(b []byte, name string, value int64) []byte {
	if value == 0 {
		return b
	}
	return strconv.AppendInt(appendName(b, name), value, 10)
}

// appendOptionalTime leaves out the zero time. The others must come from wireTime.
func appendOptionalTime(b []byte, name string, value time.Time) []byte {
	if value.IsZero() {
		return b
	}
	b = append(appendName(b, name), '"')
	return append(value.AppendFormat(b, time.RFC3339Nano), '"')
}

// appendQuoted appends a string of UTF-8. encoding/json escapes those that need it.
func appendQuoted(b []byte, text string) []byte {
	for i := range len(text) {
		if !unescaped[text[i]] {
			quoted, err := json.Marshal(text)
			if err != nil {
				quoted = []byte(`""`) // Not possible: each string has a JSON form.
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, text...)
	return append(b, '"')
}

// unescaped marks the bytes of ASCII that encoding/json writes as they are.
var unescaped = func() (table [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		table[c] = true
	}
	for _, c := range `"\<>&` {
		table[c] = false
	}
	return table
}()
