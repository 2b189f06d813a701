package listener_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/listener"
)

// village is a network of pipes, where everybody has an address.
type village struct {
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func newVillage() *village {
	return &village{incoming: make(chan net.Conn), closed: make(chan struct{})}
}

func (v *village) Accept() (net.Conn, error) {
	select {
	case conn := <-v.incoming:
		return conn, nil
	case <-v.closed:
		return nil, net.ErrClosed
	}
}

func (v *village) Close() error {
	v.once.Do(func() { close(v.closed) })

	return nil
}

func (v *village) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443} }

// from connects from an address.
func (v *village) from(t *testing.T, address string) net.Conn {
	t.Helper()

	near, far := net.Pipe()
	t.Cleanup(func() { near.Close() })

	v.incoming <- &addressed{far, &net.TCPAddr{IP: net.ParseIP(address), Port: 1}}

	return near
}

type addressed struct {
	net.Conn

	remote net.Addr
}

func (a *addressed) RemoteAddr() net.Addr { return a.remote }

// hall is a listener in a village whose handshakes take a time of work each, and the most that worked at once.
type hall struct {
	*village

	ca *authority

	mu           sync.Mutex
	inside, most int
}

func (h *hall) work(took time.Duration) {
	h.mu.Lock()
	h.inside++
	h.most = max(h.most, h.inside)
	h.mu.Unlock()

	time.Sleep(took) // It costs no time, and stands for the work.

	h.mu.Lock()
	h.inside--
	h.mu.Unlock()
}

func (h *hall) counts() (inside, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.inside, h.most
}

func newHall(t *testing.T, took time.Duration, opts listener.Options) *hall {
	t.Helper()

	h := &hall{village: newVillage(), ca: newAuthority(t, "ca")}
	opts.Listener = h.village
	opts.TLS = serverConfig(t, h.ca, tls.RequireAndVerifyClientCert, h.ca)
	opts.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		h.work(took)

		return nil, nil
	}
	untilTheEnd(t, newListener(t, listener.FromTLS(listener.PeerOptions{}), listener.InsecureAllowAll(), &recorder{}, opts))

	return h
}

// begin says hello from an address and leaves the handshake at that. What it returns is closed when the listener has answered or hung up.
func (h *hall) begin(t *testing.T, address string) <-chan struct{} {
	t.Helper()

	conn, answered := h.from(t, address), make(chan struct{})

	go func() {
		defer close(answered)

		client := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		_ = client.HandshakeContext(t.Context()) // Without a certificate it fails, or later.
	}()

	return answered
}

// deliver connects a runtime anew and has it send an event, by HTTP/1.1: pipes hold nothing, and both ends of HTTP/2 begin with a word.
func (h *hall) deliver(t *testing.T, address string) (status int, took time.Duration) {
	t.Helper()

	client := newClient(t, h.ca, false, h.ca.client(t, string(runtimeA)).pair())
	transport, _ := client.Transport.(*http.Transport)
	transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return h.from(t, address), nil }

	began := time.Now()
	response, _ := mustSend(t, client, "https://127.0.0.1/v2/lifecycle/event", bodyV2, nil)
	transport.CloseIdleConnections()

	return response.StatusCode, time.Since(began)
}

// However many begin at once, few compute, and a runtime from elsewhere waits for none but the one before it.
func TestHandshakesTakeTurns(t *testing.T) {
	t.Parallel()

	const (
		flood  = 300
		work   = 10 * time.Millisecond
		places = 2
	)

	synctest.Test(t, func(t *testing.T) {
		h := newHall(t, work, listener.Options{MaxHandshakes: places})

		for range 100 {
			h.from(t, "10.0.0.1") // They say nothing, and hold up nobody.
		}

		for range flood {
			h.begin(t, "10.0.0.1")
		}

		synctest.Wait()

		status, took := h.deliver(t, "10.0.0.2")
		if status != http.StatusOK {
			t.Errorf("answer %d, want 200", status)
		}

		// It has to wait before each of its messages, and the others need 1.5 s.
		if took > 10*work {
			t.Errorf("a runtime from elsewhere had to wait for %v", took)
		}

		if _, most := h.counts(); most != places {
			t.Errorf("%d handshakes at once, want %d", most, places)
		}
	})
}

// All of one address come in: a fleet behind one address, after a restart.
func TestAllHandshakesOfOneAddressCome(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		const fleet = 100

		h := newHall(t, 50*time.Millisecond, listener.Options{MaxHandshakes: 1})

		var all sync.WaitGroup

		for range fleet {
			all.Go(func() {
				if status, _ := h.deliver(t, "10.0.0.1"); status != http.StatusOK {
					t.Errorf("answer %d, want 200", status)
				}
			})
		}

		all.Wait()
	})
}

// Who waited for longer than a handshake may take is not worked for, and takes no place with it.
func TestLateHandshakesEnd(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		const most = 10 * time.Second

		h := newHall(t, 15*time.Second, listener.Options{MaxHandshakes: 1, ReadTimeout: most})
		began := time.Now()

		h.begin(t, "10.0.0.1")
		synctest.Wait()
		<-h.begin(t, "10.0.0.1")

		if took := time.Since(began); took != most {
			t.Errorf("the one who waits was let go after %v, want %v", took, most)
		}

		time.Sleep(most)

		third := h.begin(t, "10.0.0.1")
		synctest.Wait()

		if inside, _ := h.counts(); inside != 1 {
			t.Error("the turn of the third has not come")
		}

		<-third
	})
}
