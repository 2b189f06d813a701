package canary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Lease patches one existing Lease (coordination.k8s.io/v1). It needs the
// permission to patch this object only. Create one with [NewLease]. It is not safe for concurrent
// use.
type Lease struct {
	apiServer

	// urls contains one URL for each API server, with the path of the Lease and the field manager.
	urls []string
}

// NewLease returns a writer for the Lease of that name. It reads the CA bundle, and fails if the
// bundle is invalid or no address of an API server is known.
func NewLease(name types.NamespacedName, opts LeaseOptions) (*Lease, error) {
	server, addresses, err := newServer(opts)
	if err != nil {
		return nil, err
	}
	if name.Name == "" || name.Namespace == "" {
		return nil, fmt.Errorf("canary: lease is %q, want <namespace>/<name>", name)
	}

	lease := &Lease{apiServer: server}
	for _, address := range addresses {
		path := address.JoinPath("apis/coordination.k8s.io/v1/namespaces", url.PathEscape(name.Namespace),
			"leases", url.PathEscape(name.Name))
		lease.urls = append(lease.urls, path.String()+"?fieldManager=runtime-watcher-canary")
	}

	return lease, nil
}

// Write patches the nonce and the time of renewal. It is a [Write]. It reads both files, and
// blocks until the API server answers or ctx ends. The error for an answer other than 200 has a
// method StatusCode() int. The error for a file is an [io/fs.PathError]. With several API servers,
// an error names the server.
func (l *Lease) Write(ctx context.Context, nonce string) (Answer, error) {
	return l.writeAll(ctx, nonce, "")
}

// writeAll writes through all API servers in parallel, so that a server that fails or stalls hides
// no other server. A server that calls no agent decides the result, because the agent misses the
// changes that pass through this server.
func (l *Lease) writeAll(ctx context.Context, nonce, query string) (Answer, error) {
	if len(l.urls) == 1 {
		return l.writeNonce(ctx, l.urls[0]+query, nonce)
	}

	results := make([]written, len(l.urls))
	var all sync.WaitGroup

	for n, target := range l.urls {
		all.Go(func() { results[n] = l.writeNamed(ctx, target, query, nonce) })
	}

	all.Wait()

	decides := results[0]

	for _, r := range results[1:] {
		if r.rank() > decides.rank() {
			decides = r
		}
	}

	return decides.answer, decides.err
}

// written is the result of a write through one of several API servers.
type written struct {
	answer Answer
	err    error
}

// writeNamed names the API server in the error.
func (l *Lease) writeNamed(ctx context.Context, target, query, nonce string) written {
	answer, err := l.writeNonce(ctx, target+query, nonce)
	isCalled := slices.Contains(answer.Warnings, warningPrefix+nonce)

	switch {
	case err != nil:
		err = fmt.Errorf("API server %s: %w", hostOf(target), err)
	case !isCalled:
		err = &uncalled{hostOf(target)}
	}

	return written{answer, err}
}

// rank orders results: an agent that is not called, then a failure, then success.
func (w *written) rank() int {
	_, isUncalled := errors.AsType[*uncalled](w.err)
	switch {
	case isUncalled:
		return 2
	case w.err != nil:
		return 1
	default:
		return 0
	}
}

func hostOf(target string) string {
	parsed, err := url.Parse(target)
	if err != nil {
		return target
	}
	return parsed.Host
}

func (l *Lease) writeNonce(ctx context.Context, target, nonce string) (Answer, error) {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}},"spec":{"renewTime":%q}}`,
		nonceAnnotation, nonce, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00"))
	text, header, err := l.doCall(ctx, call{http.MethodPatch, target, typeMergePatch, patch}, maxAnswer)
	if header == nil {
		return Answer{}, err
	}

	// The Lease was written, even if the answer is truncated.
	var lease struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}

	_ = json.Unmarshal(text, &lease)
	return Answer{warnings(header), lease.Metadata.ResourceVersion}, nil
}

// Check patches the Lease as a dry run, which changes nothing. It reports whether the API server
// called an agent for it, and fails if the Lease cannot be written. It blocks as Write does.
func (l *Lease) Check(ctx context.Context) (called bool, err error) {
	nonce := newNonce()
	answer, err := l.writeAll(ctx, nonce, "&dryRun=All")
	if _, isUncalled := errors.AsType[*uncalled](err); isUncalled {
		return false, nil
	}
	return slices.Contains(answer.Warnings, warningPrefix+nonce), err
}

// warnings returns the texts of the Warning headers (RFC 7234, section 5.5). API servers send a
// header such as: 299 - "text".
func warnings(header http.Header) (texts []string) {
	for _, value := range header.Values("Warning") {
		_, rest, _ := strings.Cut(value, `"`)
		if text, _, ok := strings.Cut(rest, `"`); ok {
			texts = append(texts, text)
		}
	}
	return texts
}
