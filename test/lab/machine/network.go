package machine

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Forwarder copies the bytes of connections to where Dial leads, in both directions.
type Forwarder struct {
	Dial func(ctx context.Context) (net.Conn, error)
	work sync.WaitGroup
}

// Start accepts connections until the socket is closed.
func (f *Forwarder) Start(ctx context.Context, socket net.Listener) {
	f.work.Go(func() { f.serve(ctx, socket) })
}

// Wait waits until all connections are closed.
func (f *Forwarder) Wait() { f.work.Wait() }

func (f *Forwarder) serve(ctx context.Context, socket net.Listener) {
	for {
		inside, err := socket.Accept()
		if err != nil {
			return
		}
		f.work.Go(func() {
			if outside, err := f.Dial(ctx); err == nil {
				Carry(ctx, inside, outside)
			}
			_ = inside.Close()
		})
	}
}

// Carry copies until one end closes, or ctx ends.
func Carry(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() { _, _ = a.Close(), b.Close() })
	defer stop()
	var both sync.WaitGroup
	copyTo := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // Any end is one.
		_, _ = to.Close(), from.Close()
	}
	both.Go(func() { copyTo(a, b) })
	both.Go(func() { copyTo(b, a) })
	both.Wait()
}

// Tunnel leads an API server into the network of the pods, as konnectivity does. The API server
// sends CONNECT with the address of a Service.
func Tunnel(ctx context.Context, dial func(ctx context.Context, service string) (net.Conn, error)) *http.Server {
	connect := func(w http.ResponseWriter, r *http.Request) {
		inside, err := dial(r.Context(), r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		outside, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			_ = inside.Close()
			return
		}
		_, _ = io.WriteString(outside, "HTTP/1.1 200 OK\r\n\r\n") // Else Carry ends at once.
		Carry(ctx, inside, outside)
	}
	return &http.Server{Handler: http.HandlerFunc(connect), ReadHeaderTimeout: time.Minute}
}
