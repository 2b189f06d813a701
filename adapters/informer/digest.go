package informer

import (
	"crypto/sha256"
	"encoding/base64"
	"hash/maphash"
	"strconv"
)

// sum is a hash of 128 bits.
type sum [16]byte

func sumOf(raw []byte) sum {
	h := sha256.Sum256(raw)
	return sum(h[:])
}

// digest is the kept part of one state of an object. Two digests differ where a filter could find a
// difference. It is immutable once it is kept.
type digest struct {
	// uid and content are hashes. Content is that of the compared part.
	uid, content sum
	// generation is 0 if the object does not count generations.
	generation int64
	// member is the name of the compared part, "" if the object has none.
	member string
	// metadata has the other members of metadata as JSON, each with a comma before it. Objects with
	// the same ones share the text, mostly.
	metadata string
}

// json returns a JSON object that [core.DecodeObject] reads, with hashes in place of the content.
func (d *digest) json() []byte {
	text := []byte(`{"metadata":{"uid":""`)
	if d.generation != 0 {
		text = strconv.AppendInt(append(text, `,"generation":`...), d.generation, 10)
	}
	text = append(append(text, d.metadata...), '}')
	if d.member != "" {
		text = append(text, `,"`+d.member+`":"`+base64.RawStdEncoding.EncodeToString(d.content[:])+`"`...)
	}
	return append(text, '}')
}

// recent are texts that were read lately, so that equal ones share their memory. Nil shares none.
type recent struct {
	seed  maphash.Seed
	texts [256]string
}

func newRecent() *recent { return &recent{seed: maphash.MakeSeed()} }

func (r *recent) share(text []byte) string {
	if r == nil {
		return string(text)
	}
	known := &r.texts[maphash.Bytes(r.seed, text)%uint64(len(r.texts))]
	if *known != string(text) {
		*known = string(text)
	}
	return *known
}
