package subresources

import (
	"bytes"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/test/controlplane"
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

// kubectl runs it, and skips the step where it is missing.
func kubectl(args ...string) write {
	return func(s *scene) {
		s.t.Helper()

		assets, err := controlplane.Assets(s.t.Context(), controlplane.AssetsOptions{Kubectl: true})
		if err != nil {
			s.t.Skipf("needs kubectl, which controlplane-assets -kubectl builds: %v", err)
		}

		cmd := exec.CommandContext(s.t.Context(), filepath.Join(assets, "kubectl"),
			append([]string{"--kubeconfig", s.plane.Kubeconfig}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			s.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
		}
	}
}

func namespaced(group, resource, name string) string {
	return strings.TrimSuffix(fmt.Sprintf("/apis/%s/v1/namespaces/default/%s/%s", group, resource, name), "/")
}

func ofCore(resource, name string) string {
	return strings.TrimSuffix(fmt.Sprintf("/api/v1/namespaces/default/%s/%s", resource, name), "/")
}
