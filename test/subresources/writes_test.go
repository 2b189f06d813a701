package subresources

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/runtime-watcher/runtime-watcher/test/lab"
)

// kind is a kind of objects that the tests write, in one namespace, or in none.
type kind struct {
	gvr             schema.GroupVersionResource
	name, namespace string
}

func kindOf(group, resource, name, namespace string) kind {
	return kind{schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}, name, namespace}
}

var (
	widgets     = kindOf("example.com", "widgets", "Widget", "default") // with the subresource scale
	gadgets     = kindOf("example.com", "gadgets", "Gadget", "default") // with the subresource scale
	samples     = kindOf("example.com", "samples", "Sample", "default")
	things      = kindOf("example.com", "things", "Thing", "default") // without subresources
	plants      = kindOf("example.com", "plants", "Plant", "")
	deployments = kindOf("apps", "deployments", "Deployment", "default")
	leases      = kindOf("coordination.k8s.io", "leases", "Lease", "default")
	definitions = kindOf("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", "")
	configMaps  = kindOf("", "configmaps", "ConfigMap", "default")
	secrets     = kindOf("", "secrets", "Secret", "default")
	pods        = kindOf("", "pods", "Pod", "default")
	accounts    = kindOf("", "serviceaccounts", "ServiceAccount", "default")
	namespaces  = kindOf("", "namespaces", "Namespace", "")
)

// in returns the kind in another namespace.
func (k kind) in(namespace string) kind {
	k.namespace = namespace
	return k
}

// path is where an object is, or all of the namespace.
func (k kind) path(name string) string {
	root, namespace := path.Join("/apis", k.gvr.Group), ""
	if k.gvr.Group == "" {
		root = "/api"
	}
	if k.namespace != "" {
		namespace = "namespaces/" + k.namespace
	}
	return path.Join(root, k.gvr.Version, namespace, k.gvr.Resource, name)
}

// object returns an object of members in JSON.
func (k kind) object(name, members string) string {
	text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q`, k.gvr.GroupVersion(), k.name, name)
	if rest, ok := strings.CutPrefix(members, `"metadata":{`); ok {
		return text + "," + rest + "}"
	}
	return strings.TrimSuffix(text+"},"+members, ",") + "}"
}

// event is the text of an event: see [scene.accept].
func (k kind) event(operation, name string) string {
	return fmt.Sprintf("%s %s.%s.%s %s/%s", operation, k.name, k.gvr.Version, k.gvr.Group, k.namespace, name)
}

const (
	mergePatch = "application/merge-patch+json"
	applyPatch = "application/apply-patch+yaml"
	plainJSON  = "application/json"
)

// write makes one or more requests for an object. What follows its path is "/<subresource>?<query>".
type write func(s *scene, k kind, name string)

func request(method, more, contentType, body string) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		s.must(method, k.path(name)+more, contentType, body)
	}
}

func merge(more, body string) write { return request(http.MethodPatch, more, mergePatch, body) }

func post(more, body string) write { return request(http.MethodPost, more, plainJSON, body) }

func remove(more string) write { return request(http.MethodDelete, more, plainJSON, "") }

// removeAll removes the ConfigMaps of a namespace.
func removeAll(s *scene, k kind, _ string) {
	s.t.Helper()
	remove("?fieldSelector=metadata.name!=kube-root-ca.crt")(s, k, "")
}

// made creates the object of members in JSON.
func made(members string) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		s.must(http.MethodPost, k.path(""), plainJSON, k.object(name, members))
	}
}

func apply(more, members string) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		s.must(http.MethodPatch, k.path(name)+more, applyPatch, k.object(name, members))
	}
}

// refused is a write that the API server must refuse with a status.
func refused(status int, write write) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		s.refuses = status
		defer func() { s.refuses = 0 }()
		write(s, k, name)
	}
}

// all makes writes one after the other.
func all(writes ...write) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		for _, write := range writes {
			write(s, k, name)
		}
	}
}

// must fails the test unless the API server answers with success, or with the status of refused.
func (s *scene) must(method, at, contentType, body string) (answer []byte) {
	s.t.Helper()
	status, answer := s.api.Do(s.t, method, at, contentType, body)
	if status != s.refuses && (s.refuses != 0 || status >= http.StatusMultipleChoices) {
		s.t.Fatalf("%s %s: status %d: %.500s", method, at, status, answer)
	}
	return answer
}

// put replaces a top-level field of an object by raw JSON, as it stands: the order and the notation
// stay. An empty text removes it.
func put(more, field, raw string) write {
	return func(s *scene, k kind, name string) {
		s.t.Helper()
		var object map[string]json.RawMessage
		lab.NoError(s.t, json.Unmarshal(s.must(http.MethodGet, k.path(name), plainJSON, ""), &object))
		if object[field] = json.RawMessage(raw); raw == "" {
			delete(object, field)
		}
		var text bytes.Buffer // json.Marshal would change the order of members within a field.
		for field, raw := range object {
			fmt.Fprintf(&text, ",%q:%s", field, raw)
		}
		s.must(http.MethodPut, k.path(name)+more, plainJSON, "{"+text.String()[1:]+"}")
	}
}
