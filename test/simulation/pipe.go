package simulation

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// stream is one direction of a connection. It is not bounded: a write never blocks.
type stream struct {
	mu       sync.Mutex
	changed  *sync.Cond
	chunks   []chunk
	arrival  time.Time // of the newest chunk
	deadline time.Time // of reads
	ended    bool      // the writer closed: EOF after the chunks
	broken   bool
}

// chunk is the data of one write, and the time at which it arrives.
type chunk struct {
	data []byte
	at   time.Time
}

func newStream() *stream {
	s := &stream{}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

// wakeAt wakes the reader later.
func (s *stream) wakeAt(at time.Time) {
	if wait := time.Until(at); wait > 0 {
		time.AfterFunc(wait, s.wake)
	}
}

func (s *stream) read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if n, err := s.take(b); n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		s.changed.Wait()
	}
}

// take returns 0 and nil when no chunk has arrived.
func (s *stream) take(b []byte) (int, error) {
	now := time.Now()
	switch {
	case s.broken:
		return 0, syscall.ECONNRESET
	case !s.deadline.IsZero() && !now.Before(s.deadline):
		return 0, os.ErrDeadlineExceeded
	case len(s.chunks) > 0 && !now.Before(s.chunks[0].at):
		return s.takeChunk(b), nil
	case len(s.chunks) == 0 && s.ended:
		return 0, io.EOF
	default:
		return 0, nil
	}
}

func (s *stream) takeChunk(b []byte) int {
	first := &s.chunks[0]
	n := copy(b, first.data)
	if first.data = first.data[n:]; len(first.data) == 0 {
		s.chunks = s.chunks[1:]
	}
	return n
}

// write makes data arrive after the latency, in the order of writes.
func (s *stream) write(data []byte, latency time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now().Add(latency)
	if at.Before(s.arrival) {
		at = s.arrival
	}
	s.arrival = at
	s.chunks = append(s.chunks, chunk{append([]byte(nil), data...), at})
	s.changed.Broadcast()
	s.wakeAt(at)
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.changed.Broadcast()
}

func (s *stream) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = true
	s.changed.Broadcast()
}

func (s *stream) isBroken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

func (s *stream) setDeadline(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = at
	s.changed.Broadcast()
	if !at.IsZero() {
		s.wakeAt(at)
	}
}

// end is one end of a link. It implements [net.Conn].
type end struct {
	link          *link
	in, out       *stream
	local, remote net.Addr
	client        bool
	once          sync.Once
}

func (e *end) Read(b []byte) (int, error) { return e.in.read(b) }

func (e *end) Write(b []byte) (int, error) {
	e.out.mu.Lock()
	gone := e.out.broken || e.out.ended
	e.out.mu.Unlock()
	if gone {
		return 0, syscall.EPIPE
	}
	return len(b), e.link.carry(e, b)
}

func (e *end) Close() error {
	e.once.Do(func() {
		e.link.hangUp(e)
		e.in.reset()
	})
	return nil
}

// SetKeepAliveConfig breaks this end when the network was silent for as long as the probes last.
func (e *end) SetKeepAliveConfig(c net.KeepAliveConfig) error {
	e.probe(c.Interval, int(c.Idle/c.Interval)+c.Count)
	return nil
}

// probe fails after that many probes without an answer in a row.
func (e *end) probe(every time.Duration, left int) {
	most := left
	var again func()
	again = func() {
		if left = max(left-1, 0); !e.link.network.now(e.link.client).silent {
			left = most
		}
		switch {
		case e.in.isBroken():
		case left == 0:
			e.in.reset()
		default:
			time.AfterFunc(every, again)
		}
	}
	time.AfterFunc(every, again)
}

func (e *end) LocalAddr() net.Addr  { return e.local }
func (e *end) RemoteAddr() net.Addr { return e.remote }

func (e *end) SetDeadline(t time.Time) error { return e.SetReadDeadline(t) }

func (e *end) SetReadDeadline(t time.Time) error {
	e.in.setDeadline(t)
	return nil
}

// SetWriteDeadline does nothing, as a write never blocks.
func (e *end) SetWriteDeadline(time.Time) error { return nil }
