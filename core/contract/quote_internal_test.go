package contract

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestTextsAreQuotedAsByEncodingJSON(t *testing.T) {
	t.Parallel()

	texts := []string{"", "\xff", "a\xe2\x80b", "\u2028", "\U0001F600"}
	for r := range rune(0x500) {
		texts = append(texts, "a"+string(r)+"b")
	}

	for _, text := range texts {
		want, err := json.Marshal(text)
		if got := appendQuoted(nil, text); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q is written as %s, want %s, %v", text, got, want, err)
		}
	}
}
