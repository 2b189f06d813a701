package canary

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// FieldManager is the field manager of applied configurations.
const FieldManager = "runtime-watcher-agent"

const (
	// maxConfiguration bounds a configuration, in bytes. An API server stores no larger object.
	maxConfiguration = 2 << 20
	// watchSeconds bounds one watch. The API server then ends the watch.
	watchSeconds = "300"
)

// Configuration reads and writes one ValidatingWebhookConfiguration
// (admissionregistration.k8s.io/v1). Each method needs permission for its verb, and only for the
// object of that name. With several API servers, each request goes first to the server that has
// answered last, and after a failure to the next server. Create one with [NewConfiguration]. It is
// safe for concurrent use.
type Configuration struct {
	// One client has one connection at a time, and a watch keeps its connection.
	requests, watches apiServer

	// all contains the URL of the configurations for each API server.
	all  []*url.URL
	name string
	// answered is the index of the API server that has answered last.
	answered atomic.Int64
}

// NewConfiguration returns the configuration of that name. It reads the CA bundle, and fails if the
// bundle is invalid or no address of an API server is known.
func NewConfiguration(name string, opts LeaseOptions) (*Configuration, error) {
	server, addresses, err := newServer(opts)
	if err != nil {
		return nil, err
	}

	c := &Configuration{requests: server, watches: server, name: name}
	c.watches.client = c.watches.newClient()

	for _, address := range addresses {
		c.all = append(c.all, address.JoinPath("apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"))
	}

	return c, nil
}

// tryServers calls once with the URL of the configurations of an API server. While a server cannot
// answer, it calls once with the URL of the next server. Each server except the last one gets only
// a part of the time.
func (c *Configuration) tryServers(ctx context.Context, once func(ctx context.Context, all *url.URL) error) error {
	var err error
	first := c.answered.Load()
	count := int64(len(c.all))
	for n := range count {
		at := (first + n) % count
		trying, cancel := withPart(ctx, count-n)
		err = once(trying, c.all[at])
		cancel()

		if err == nil || hasAnswered(err) || ctx.Err() != nil {
			c.answered.Store(at)
			return err
		}
	}

	return err
}

// withPart divides the time that is left into equal parts, and returns a context with one of them.
func withPart(ctx context.Context, parts int64) (context.Context, context.CancelFunc) {
	end, hasEnd := ctx.Deadline()
	if !hasEnd || parts == 1 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(end)/time.Duration(parts))
}

// hasAnswered is false for an API server that cannot be reached, or that cannot answer now.
func hasAnswered(err error) bool {
	refused, ok := errors.AsType[*refusal](err)
	return ok && refused.StatusCode() < http.StatusInternalServerError &&
		refused.StatusCode() != http.StatusTooManyRequests
}

// callServers sends a request about the configuration, and returns the answer.
func (c *Configuration) callServers(ctx context.Context, of call, query string, most int64) (text []byte, err error) {
	err = c.tryServers(ctx, func(ctx context.Context, all *url.URL) error {
		of.target = all.JoinPath(url.PathEscape(c.name)).String() + query
		text, _, err = c.requests.doCall(ctx, of, most)
		return err
	})

	return text, err
}

// Read returns the configuration in JSON, or nil if there is none. It needs the verb get. It reads
// both files, and blocks until the API server answers or ctx ends. The error for a status other
// than 200 and 404 has a method StatusCode() int.
func (c *Configuration) Read(ctx context.Context) ([]byte, error) {
	text, err := c.callServers(ctx, call{method: http.MethodGet}, "", maxConfiguration)
	if isNotFound(err) {
		return nil, nil
	}
	return text, err
}

// DecodeConfiguration decodes the result of [Configuration.Read] or [Configuration.Apply]. It
// returns nil if there is no configuration, and returns err unchanged.
func DecodeConfiguration[T any](text []byte, err error) (*T, error) {
	if err != nil || text == nil {
		return nil, err
	}

	object := new(T)
	if err := json.Unmarshal(text, object); err != nil {
		return nil, fmt.Errorf("canary: webhook configuration: %w", err)
	}
	return object, nil
}

func isNotFound(err error) bool {
	refused, ok := errors.AsType[*refusal](err)
	return ok && refused.StatusCode() == http.StatusNotFound
}

// ApplyOptions are the choices of [Configuration.Apply].
type ApplyOptions struct {
	// Force takes over the fields of other field managers. Default: these fields cause a conflict
	// (409).
	Force bool
	// DryRun changes nothing. Default: false.
	DryRun bool
}

// Apply applies the configuration in JSON by server-side apply, and returns the result. It needs
// the verb patch, and create if there is no configuration. It blocks and fails as Read does.
func (c *Configuration) Apply(ctx context.Context, object []byte, opts ApplyOptions) ([]byte, error) {
	query := "?fieldManager=" + FieldManager
	if opts.Force {
		query += "&force=true"
	}
	if opts.DryRun {
		query += "&dryRun=All"
	}
	return c.callServers(ctx, call{method: http.MethodPatch, media: typeApply, body: object}, query, maxConfiguration)
}

// Delete deletes the configuration, unless its UID is not uid. It returns nil if there is no
// configuration. It needs the verb delete. It blocks and fails as Read does.
func (c *Configuration) Delete(ctx context.Context, uid string) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": uid},
	})
	if err != nil {
		return fmt.Errorf("canary: %w", err)
	}

	_, err = c.callServers(ctx, call{method: http.MethodDelete, media: typeJSON, body: body}, "", maxAnswer)
	if isNotFound(err) {
		return nil
	}

	return err
}

// Watch calls changed when the configuration has changed, and once at the start if there is a
// configuration. It needs the verb watch. It blocks until ctx ends or the API server ends the
// watch, which is not an error. It keeps no event in memory.
func (c *Configuration) Watch(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	events, err := c.beginWatch(ctx)
	if err != nil {
		return err
	}
	defer events.Close() // Its error says nothing about the events.

	// Each event is one line.
	buffer := make([]byte, 4<<10)
	for {
		n, err := events.Read(buffer)
		if bytes.IndexByte(buffer[:n], '\n') >= 0 {
			changed()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("canary: watch: %w", reasons.Plain(err))
		}
	}
}

// watchHeader is the time in which an API server must begin a watch.
const watchHeader = 10 * time.Second

// beginWatch returns the events of the first API server that begins a watch. The watch ends with
// ctx. The caller must close the events.
func (c *Configuration) beginWatch(ctx context.Context) (events io.ReadCloser, err error) {
	query := url.Values{
		"watch": {"true"}, "fieldSelector": {"metadata.name=" + c.name}, "timeoutSeconds": {watchSeconds},
	}
	err = c.tryServers(ctx, func(_ context.Context, all *url.URL) error {
		watching, cancel := context.WithCancel(ctx) // The body of the answer needs it. It ends with ctx.
		late := time.AfterFunc(watchHeader, cancel)
		defer late.Stop()

		target := all.String() + "?" + query.Encode()
		//nolint:bodyclose // The caller closes the events.
		answer, err := c.watches.sendCall(watching, call{method: http.MethodGet, target: target})
		if err != nil {
			return err
		}

		events = answer.Body
		return nil
	})

	return events, err
}
