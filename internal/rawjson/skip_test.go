package rawjson

import (
	"encoding/binary"
	"math/bits"
	"testing"
)

// TestSpecialFindsTheFirst holds the look at eight bytes at once against the look at one.
func TestSpecialFindsTheFirst(t *testing.T) {
	t.Parallel()
	for place := range 8 {
		for c := range 256 {
			for _, behind := range []byte{'a', '"', '\\', 0x00, 0x1f, ' ', 0x80, 0xff} {
				word := []byte("aaaaaaaa")
				for i := place + 1; i < len(word); i++ {
					word[i] = behind
				}
				word[place] = byte(c)
				want := 0
				for want < len(word) && plain[word[want]] {
					want++
				}
				if got := bits.TrailingZeros64(special(binary.LittleEndian.Uint64(word))) / 8; got != want {
					t.Fatalf("%q: the first special byte is number %d, want %d", word, got, want)
				}
			}
		}
	}
}
