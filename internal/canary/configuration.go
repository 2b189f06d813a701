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

	"github.com/runtime-watcher/runtime-watcher/internal/reasons"
)

// FieldManager is that of applied configurations.
const FieldManager = "runtime-watcher-agent"

const (
	// maxConfiguration is in bytes. An API server stores no larger object.
	maxConfiguration = 2 << 20
	// watchSeconds bounds one watch. The API server ends it then.
	watchSeconds = "300"
)

// Configuration reads and writes one ValidatingWebhookConfiguration
// (admissionregistration.k8s.io/v1). Each method needs the right to its verb, for an object of that
// name only. Create one with [NewConfiguration]. It is safe for concurrent use.
type Configuration struct {
	// One client has one connection at a time, and a watch keeps its connection.
	requests, watches apiServer

	url, watchURL string
}

// NewConfiguration returns the configuration of that name. It reads the CA bundle. It fails if that
// is invalid, or if there is no address of an API server.
func NewConfiguration(name string, opts LeaseOptions) (*Configuration, error) {
	server, addresses, err := newServer(opts)
	if err != nil {
		return nil, err
	}
	all := addresses[0].JoinPath("apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations")
	watch := url.Values{
		"watch": {"true"}, "fieldSelector": {"metadata.name=" + name}, "timeoutSeconds": {watchSeconds},
	}
	watches := server
	watches.client = watches.newClient()
	return &Configuration{
		requests: server, watches: watches,
		url: all.JoinPath(url.PathEscape(name)).String(), watchURL: all.String() + "?" + watch.Encode(),
	}, nil
}

// Read returns the configuration in JSON, nil if there is none (get). It reads both files, and
// blocks until the API server answers or ctx ends. The error for another answer than 200 and 404
// has a method StatusCode() int.
func (c *Configuration) Read(ctx context.Context) ([]byte, error) {
	text, _, err := c.requests.do(ctx, call{method: http.MethodGet, target: c.url}, maxConfiguration)
	if isNotFound(err) {
		return nil, nil
	}
	return text, err
}

func isNotFound(err error) bool {
	refused, ok := errors.AsType[*refusal](err)
	return ok && refused.StatusCode() == http.StatusNotFound
}

// ApplyOptions are the choices of [Configuration.Apply].
type ApplyOptions struct {
	// Force takes the fields of other field managers over. Default: they are a conflict (409).
	Force bool
	// DryRun changes nothing. Default: false.
	DryRun bool
}

// Apply applies the configuration in JSON by server-side apply, and returns the result (patch, and
// create if there is none). It blocks and fails as Read does.
func (c *Configuration) Apply(ctx context.Context, object []byte, opts ApplyOptions) ([]byte, error) {
	target := c.url + "?fieldManager=" + FieldManager
	if opts.Force {
		target += "&force=true"
	}
	if opts.DryRun {
		target += "&dryRun=All"
	}
	text, _, err := c.requests.do(ctx, call{http.MethodPatch, target, typeApply, object}, maxConfiguration)
	return text, err
}

// Delete deletes the configuration, unless it is another object than that of the UID (delete). It
// returns nil if there is none. It blocks and fails as Read does.
func (c *Configuration) Delete(ctx context.Context, uid string) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]string{"uid": uid},
	})
	if err != nil {
		return fmt.Errorf("canary: %w", err)
	}
	_, _, err = c.requests.do(ctx, call{http.MethodDelete, c.url, typeJSON, body}, maxAnswer)
	if isNotFound(err) {
		return nil
	}
	return err
}

// Watch calls changed when the configuration has changed, and once at the start if there is one
// (watch). It blocks until the API server ends the watch, which is no error, or ctx ends. It keeps
// no event in memory.
func (c *Configuration) Watch(ctx context.Context, changed func()) error {
	answer, err := c.watches.send(ctx, call{method: http.MethodGet, target: c.watchURL})
	if err != nil {
		return err
	}
	defer answer.Body.Close() // Its error says nothing about the events.

	// Each event is one line.
	buffer := make([]byte, 4<<10)
	for {
		n, err := answer.Body.Read(buffer)
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
