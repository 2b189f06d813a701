package rawjson

import (
	"encoding/binary"
	"math/bits"
	"strings"
	"testing"
	"time"
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

func TestCommonPrefix(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("0123456789", 3)

	for n := range long {
		for _, other := range []string{long[:n], long[:n] + "x", long[:n] + "x" + long[n+1:]} {
			if got := commonPrefix([]byte(long), []byte(other)); got != n {
				t.Errorf("%q and %q have %d bytes in common, want %d", long, other, got, n)
			}
		}
	}

	if got := commonPrefix([]byte(long), []byte(long)); got != len(long) {
		t.Errorf("%d bytes in common with itself, want %d", got, len(long))
	}
}

// The only difference is in the innermost array, and each level has much text before it. Without a
// budget, each level would read all of it.
func TestEqualPartsAreNotReadAgainAndAgain(t *testing.T) {
	t.Parallel()

	const size = 2 << 20

	level := `[[` + strings.Repeat("7,", size/maxDepth/2) + `7],`
	nest := func(inner string) []byte {
		return []byte(strings.Repeat(level, maxDepth-2) + inner + strings.Repeat("]", maxDepth-2))
	}

	for inner, want := range map[string]bool{"1.0": true, "2": false} {
		a, b := nest("1"), nest(inner)
		reading := timeOf(func() { _, _ = NewReader(a).Skip() })

		var got bool

		comparing := timeOf(func() { got = Equal(a, b) })
		if got != want {
			t.Errorf("1 and %s: Equal = %v, want %v", inner, got, want)
		}

		// Without a budget it is several thousand times as long.
		if comparing > 500*reading {
			t.Errorf("1 and %s: took %v, want at most 500 times the %v that reading takes", inner, comparing, reading)
		}
	}
}

func timeOf(work func()) time.Duration {
	start := time.Now()

	work()

	return time.Since(start)
}

// The most frequent change of users: one more field.
func TestAddedMemberIsNotDecoded(t *testing.T) {
	big := `"big":[` + strings.Repeat(`{"a":"b"},`, 1000) + `{}]`
	before, after := []byte(`{"a":1,`+big+`,"z":1}`), []byte(`{"a":1,"b":2,`+big+`,"z":1}`)

	allocs := testing.AllocsPerRun(10, func() {
		if Equal(before, after) || Equal(after, before) {
			t.Error("an added member makes no difference")
		}
	})
	if allocs > 50 {
		t.Errorf("%v allocations, want few: nothing needs to be decoded", allocs)
	}
}
