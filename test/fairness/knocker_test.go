package fairness

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"syscall"
	"time"
)

// knockers is the address that handshakes are begun from. All others come from 127.0.0.1.
const knockers = "127.0.0.66"

// knockerSettings are what the process is told that begins handshakes without end.
type knockerSettings struct {
	Addr string `json:"addr"`
	// Connections is how many it begins at once.
	Connections int `json:"connections"`
}

// knocked is what came of one round.
type knocked struct {
	Seconds float64 `json:"seconds"`
	// Answered is how many handshakes the server has computed its part of, key exchange and signature.
	Answered int64 `json:"answered"`
	Failed   int64 `json:"failed"`
}

func (k *knocked) add(other knocked) {
	k.Seconds += other.Seconds
	k.Answered += other.Answered
	k.Failed += other.Failed
}

// runKnocker begins handshakes for as long as each order says, and reports, until its input ends. It computes nothing itself: all say the
// same hello, which is what makes it a cheap attack.
func runKnocker(ctx context.Context, w *wire) {
	var settings knockerSettings

	w.must(w.Decode(&settings))
	w.must(syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19))

	hello := hello(ctx)

	var round time.Duration
	for w.Decode(&round) == nil {
		w.must(w.Encode(knock(ctx, settings, hello, round)))
	}
}

// hello returns the first message of a client.
func hello(ctx context.Context) []byte {
	ours, theirs := net.Pipe()
	defer theirs.Close()

	go func() {
		client := tls.Client(ours, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
		_ = client.HandshakeContext(ctx) // Nobody answers.
	}()

	record := make([]byte, 16<<10)
	n, _ := theirs.Read(record)

	return record[:n]
}

func knock(ctx context.Context, settings knockerSettings, hello []byte, round time.Duration) knocked {
	ctx, cancel := context.WithTimeout(ctx, round)
	defer cancel()

	var (
		group   sync.WaitGroup
		sum     counters
		started = time.Now()
	)

	for range settings.Connections {
		group.Go(func() {
			for ctx.Err() == nil {
				if knockOnce(ctx, settings.Addr, hello) {
					sum.taken.Add(1)
				} else {
					sum.failed.Add(1)
				}
			}
		})
	}

	group.Wait()

	return knocked{Seconds: time.Since(started).Seconds(), Answered: sum.taken.Load(), Failed: sum.failed.Load()}
}

// knockOnce begins a handshake, and leaves when the server has done its part.
func knockOnce(ctx context.Context, addr string, hello []byte) bool {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(knockers)}}

	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close()

	// No port is kept waiting for stragglers.
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}

	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()

	if _, err := conn.Write(hello); err != nil {
		return false
	}

	_, err = conn.Read(make([]byte, 1))

	return err == nil
}
