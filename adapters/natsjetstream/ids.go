package natsjetstream

import (
	"crypto/rand"
	"crypto/sha256"
	"sync"
)

// ids are the IDs of messages with an unknown result. The same message gets the same ID again, so
// that the stream stores it once. After a result it gets a new one: the stream would ignore it.
//
// The IDs of a stream are shared by all runtimes. They are random, because a runtime that knew
// those of another could make the stream ignore its messages.
type ids struct {
	mu   sync.Mutex
	open map[string]openID // by subject
}

type openID struct {
	body [sha256.Size]byte
	id   string
}

// maxOpen bounds the subjects with an unknown result. An ID that is forgotten costs a duplicate.
const maxOpen = 100

func (i *ids) of(subject string, body []byte) string {
	sum := sha256.Sum256(body)
	i.mu.Lock()
	defer i.mu.Unlock()
	known, ok := i.open[subject]
	if ok && known.body == sum {
		return known.id
	}
	if i.open == nil || !ok && len(i.open) >= maxOpen {
		i.open = map[string]openID{}
	}
	i.open[subject] = openID{sum, rand.Text()}
	return i.open[subject].id
}

// conclude forgets the ID, as the result of the message is known.
func (i *ids) conclude(subject, id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.open[subject].id == id {
		delete(i.open, subject)
	}
}
