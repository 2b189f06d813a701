package informer_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"k8s.io/client-go/rest"
)

// server is an API server in memory. It is an [http.RoundTripper], so that it works in a bubble of
// testing/synctest.
type server struct {
	// watchList is whether a watch may begin with a list.
	watchList bool
	// expiresByStatus is whether an expired version is a status of HTTP, and not an event.
	expiresByStatus bool
	// pageSize bounds the items of a list, 0 for all.
	pageSize int

	mu       sync.Mutex
	version  int
	oldest   int                       // versions up to this one have expired
	objects  map[string]map[string]any // by path and name
	events   []event
	changed  chan struct{}
	refusals map[string]int // status by verb: connect, or serve, list or watch of a resource
	requests []string
	cuts     chan struct{} // closed to end all watches
}

// event is one of a watch.
type event struct {
	version  int
	resource string
	Type     string         `json:"type"`
	Object   map[string]any `json:"object"`
}

func newServer() *server {
	return &server{
		watchList: true, objects: map[string]map[string]any{}, changed: make(chan struct{}), cuts: make(chan struct{}),
		refusals: map[string]int{},
	}
}

func (s *server) config() *rest.Config {
	return &rest.Config{Host: "http://api.example.com", Transport: s}
}

// RoundTrip implements [http.RoundTripper].
func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.refusal("connect") != 0 {
		return nil, syscall.ECONNREFUSED
	}

	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource := path[len(path)-1]
	s.note(r.URL.Path + " " + r.Header.Get("Accept") + " " + r.URL.Query().Encode())
	verb := "list "

	if r.URL.Query().Get("watch") != "" {
		verb = "watch "
	}

	refused := cmp.Or(s.refusal("serve "+resource), s.refusal(verb+resource))
	switch {
	case strings.HasPrefix(resource, "v"):
		return s.discovery(), nil
	case strings.Contains(resource, "."):
		return answer(http.StatusOK, `{"preferredVersion":{"version":"v1"}}`), nil
	case refused != 0:
		return status(refused), nil
	case verb == "watch ":
		return s.watch(r, resource), nil
	default:
		return s.list(r, resource), nil
	}
}

func (s *server) note(request string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, request)
}

// requested returns the requests since the last call that contain a text.
func (s *server) requested(part string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	all := s.requests
	s.requests = nil
	return slices.DeleteFunc(all, func(r string) bool { return !strings.Contains(r, part) })
}

func (s *server) refusal(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusals[verb]
}

// refuse answers a verb with a status, until it is 0.
func (s *server) refuse(verb string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals[verb] = status
}

func (s *server) discovery() *http.Response {
	var served []string
	for _, r := range []string{
		`{"name":"widgets","kind":"Widget","namespaced":true}`, `{"name":"widgets/status","kind":"Widget","namespaced":true}`,
		`{"name":"plain","kind":"Plain","namespaced":true}`, `{"name":"namespaces","kind":"Namespace"}`,
		`{"name":"configmaps","kind":"ConfigMap","namespaced":true}`,
	} {
		name, _, _ := strings.Cut(strings.TrimPrefix(r, `{"name":"`), `"`)
		if base, _, _ := strings.Cut(name, "/"); s.refusal("serve "+base) == 0 {
			served = append(served, r)
		}
	}

	return answer(http.StatusOK, `{"resources":[`+strings.Join(served, ",")+`]}`)
}

func (s *server) list(r *http.Request, resource string) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()

	items := s.itemsOf(resource)
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	to := len(items)
	next := ""
	if s.pageSize > 0 && from+s.pageSize < to {
		to = from + s.pageSize
		next = strconv.Itoa(to)
	}

	body, _ := json.Marshal(map[string]any{
		"kind": "List", "apiVersion": "v1", "items": items[from:to],
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version), "continue": next},
	})
	return answer(http.StatusOK, string(body))
}

// itemsOf returns the objects of a resource by name. The caller holds the lock.
func (s *server) itemsOf(resource string) []map[string]any {
	items := []map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		if strings.HasPrefix(key, resource+"/") {
			items = append(items, s.objects[key])
		}
	}

	return items
}

func (s *server) watch(r *http.Request, resource string) *http.Response {
	query := r.URL.Query()
	initial := query.Get("sendInitialEvents") == "true"
	if initial && !s.watchList {
		return status(http.StatusUnprocessableEntity)
	}

	version, _ := strconv.Atoi(query.Get("resourceVersion"))
	if !initial && s.expiresByStatus && s.expired(version) {
		return status(http.StatusGone)
	}

	body, out := io.Pipe()
	go s.stream(r, out, resource, version, initial)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: r}
}

func (s *server) expired(version int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return version < s.oldest
}

func (s *server) stream(r *http.Request, out *io.PipeWriter, resource string, version int, initial bool) {
	defer out.Close()

	send := json.NewEncoder(out)
	s.mu.Lock()
	cuts := s.cuts
	items := s.itemsOf(resource)

	if initial {
		version = s.version
	}

	s.mu.Unlock()
	if !initial && s.expired(version) {
		_ = send.Encode(event{Type: "ERROR", Object: map[string]any{
			"kind": "Status", "apiVersion": "v1", "code": http.StatusGone, "reason": "Expired", "status": "Failure",
		}})
		return
	}

	if initial {
		for _, item := range items {
			_ = send.Encode(event{Type: "ADDED", Object: item})
		}

		if send.Encode(bookmark(version, true)) != nil {
			return
		}
	}

	for {
		s.mu.Lock()
		var due []event

		for _, e := range s.events {
			if e.version > version && (e.resource == resource || e.resource == "") {
				due = append(due, e)
			}
		}

		version = s.version
		changed := s.changed
		s.mu.Unlock()

		for _, e := range due {
			if send.Encode(e) != nil {
				return
			}
		}

		select {
		case <-changed:
		case <-cuts:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func bookmark(version int, endOfList bool) event {
	metadata := map[string]any{"resourceVersion": strconv.Itoa(version)}
	if endOfList {
		metadata["annotations"] = map[string]any{"k8s.io/initial-events-end": "true"}
	}
	return event{Type: "BOOKMARK", Object: map[string]any{"metadata": metadata}}
}

// object is one of the tests.
type object map[string]any

// newObject returns an object with a spec.
func newObject(name string, generation, spec int) object {
	return object{
		"metadata": map[string]any{"namespace": "default", "name": name, "uid": name + "-1", "generation": generation},
		"spec":     map[string]any{"n": spec},
	}
}

func (o object) with(path string, value any) object {
	at := map[string]any(o)
	segments := strings.Split(path, ".")
	for _, s := range segments[:len(segments)-1] {
		next, ok := at[s].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[s] = next
		}

		at = next
	}

	at[segments[len(segments)-1]] = value
	return o
}

// put writes an object.
func (s *server) put(resource string, o object) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.version++
	o.with("metadata.resourceVersion", strconv.Itoa(s.version))
	metadata, _ := o["metadata"].(map[string]any)
	key := fmt.Sprintf("%s/%v/%v", resource, metadata["namespace"], metadata["name"])
	change := "MODIFIED"
	if s.objects[key] == nil {
		change = "ADDED"
	}

	s.objects[key] = o
	s.announce(event{s.version, resource, change, o})
}

// remove deletes an object of the namespace default.
func (s *server) remove(resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.version++
	key := resource + "/default/" + name
	o := s.objects[key]
	delete(s.objects, key)
	s.announce(event{s.version, resource, "DELETED", o})
}

// bookmark sends a bookmark to all watches.
func (s *server) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.version++
	e := bookmark(s.version, false)
	e.version = s.version
	s.announce(e)
}

// announce wakes the watches. The caller holds the lock.
func (s *server) announce(e event) {
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// cut ends all watches. New ones work, unless they are refused.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()

	close(s.cuts)
	s.cuts = make(chan struct{})
}

// expire forgets the history.
func (s *server) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.oldest = s.version + 1
	s.events = nil
	s.version++
}

func answer(code int, body string) *http.Response {
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Content-Type", "application/json")
	recorder.WriteHeader(code)
	_, _ = recorder.WriteString(body)

	return recorder.Result()
}

func status(code int) *http.Response {
	reason := map[int]string{
		http.StatusForbidden: "Forbidden", http.StatusUnauthorized: "Unauthorized", http.StatusTooManyRequests: "TooManyRequests",
		http.StatusInternalServerError: "InternalError", http.StatusNotFound: "NotFound", http.StatusGone: "Expired",
		http.StatusUnprocessableEntity: "Invalid",
	}[code]

	return answer(code, fmt.Sprintf(
		`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":"refused by the test"}`, code, reason))
}
