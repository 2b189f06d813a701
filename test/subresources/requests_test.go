package subresources

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

const (
	mergePatch = "application/merge-patch+json"
	applyPatch = "application/apply-patch+yaml"
	plainJSON  = "application/json"
)

func admissionResource(group, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
}

// write makes one or more requests.
type write func(s *scene)

// The writes below are to paths below /api or /apis.
func create(path, body string) write { return request(http.MethodPost, path, plainJSON, body) }

func patch(path, body string) write { return request(http.MethodPatch, path, mergePatch, body) }

func remove(path string) write { return request(http.MethodDelete, path, plainJSON, "") }

func request(method, path, contentType, body string) write {
	return func(s *scene) { s.t.Helper(); s.must(method, path, contentType, body) }
}

// refused is a write that the API server must refuse with a status.
func refused(method, path, contentType, body string, want int) write {
	return func(s *scene) {
		s.t.Helper()
		if status, answer := s.do(method, path, contentType, body); status != want {
			s.t.Errorf("%s %s: status %d, want %d: %.500s", method, path, status, want, answer)
		}
	}
}

// all makes writes one after the other.
func all(writes ...write) write {
	return func(s *scene) {
		s.t.Helper()
		for _, write := range writes {
			write(s)
		}
	}
}

// replace reads an object, replaces a text in it, and writes it back.
func replace(path, before, after string) write {
	return func(s *scene) {
		s.t.Helper()
		_, object := s.do(http.MethodGet, path, plainJSON, "")
		if !bytes.Contains(object, []byte(before)) {
			s.t.Fatalf("%s has no %s: %s", path, before, object)
		}
		s.must(http.MethodPut, path, plainJSON, strings.Replace(string(object), before, after, 1))
	}
}

// kubectl runs kubectl against the API server.
func kubectl(args ...string) write {
	return func(s *scene) {
		s.t.Helper()
		lab.Kubectl(s.t, append([]string{"--kubeconfig", s.plane.Kubeconfig}, args...)...)
	}
}

func namespaced(group, resource, name string) string {
	return strings.TrimSuffix(fmt.Sprintf("/apis/%s/v1/namespaces/default/%s/%s", group, resource, name), "/")
}

func ofCore(resource, name string) string {
	return strings.TrimSuffix(fmt.Sprintf("/api/v1/namespaces/default/%s/%s", resource, name), "/")
}
