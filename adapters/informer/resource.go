package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/watch"
)

type resource struct {
	schema.GroupVersionResource

	kind       schema.GroupVersionKind
	namespaced bool
	// hasStatus says whether the status has its own subresource.
	hasStatus bool
}

func (r *resource) isNamespaces() bool { return r.Group == "" && r.Resource == "namespaces" }

const discoveryTimeout = 30 * time.Second

// discover looks up a resource. Every authenticated client may do that by default.
func discover(ctx context.Context, client rest.Interface, gvr schema.GroupVersionResource) (*resource, error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()

	if gvr.Version == watch.AnyVersion {
		version, err := preferredVersion(ctx, client, gvr.Group)
		if err != nil {
			return nil, err
		}

		gvr.Version = version
	}

	var list metav1.APIResourceList
	if err := client.Get().AbsPath(groupVersionPath(gvr.GroupVersion())).Do(ctx).Into(&list); err != nil {
		return nil, err
	}

	return resourceOf(gvr, list.APIResources)
}

func resourceOf(gvr schema.GroupVersionResource, served []metav1.APIResource) (*resource, error) {
	at := slices.IndexFunc(served, func(r metav1.APIResource) bool { return r.Name == gvr.Resource })
	if at < 0 {
		return nil, apierrors.NewNotFound(gvr.GroupResource(), "")
	}
	return &resource{
		GroupVersionResource: gvr,
		kind:                 gvr.GroupVersion().WithKind(served[at].Kind),
		namespaced:           served[at].Namespaced,
		hasStatus: slices.ContainsFunc(served, func(r metav1.APIResource) bool {
			return r.Name == gvr.Resource+"/status"
		}),
	}, nil
}

func preferredVersion(ctx context.Context, client rest.Interface, group string) (string, error) {
	if group == "" {
		return "v1", nil
	}

	var found metav1.APIGroup
	if err := client.Get().AbsPath("/apis/" + group).Do(ctx).Into(&found); err != nil {
		return "", err
	}
	return found.PreferredVersion.Version, nil
}

func groupVersionPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

// countsGenerations reports whether metadata is enough to see a change of the spec. The API server
// raises the generation of a custom resource with status subresource for nothing else. Kinds of
// Kubernetes have rules of their own: Deployments also count annotations.
func (r *resource) countsGenerations() bool {
	custom := strings.Contains(r.Group, ".") && !strings.HasSuffix(r.Group, ".k8s.io")
	return custom && r.hasStatus
}

// Validate returns all problems of a watch as a joined error: the problems that
// [watch.Watch.Validate] finds, and parts that only a webhook can watch. The error wraps
// [watch.ErrInvalid].
func Validate(w *watch.Watch) error { return errors.Join(w.Validate(), unsupported(w)) }

func unsupported(w *watch.Watch) error {
	var problems []error
	refuse := func(format string, args ...any) {
		problems = append(problems,
			fmt.Errorf("%w %.330q: want "+format, append([]any{watch.ErrInvalid, w.Name.String()}, args...)...))
	}

	if strings.Contains(w.Resource.Resource, "/") {
		refuse("a resource without subresource, have %.80q", w.Resource.Resource)
	}
	if len(w.Conditions) > 0 {
		refuse("no conditions, which only an API server evaluates, have %d", len(w.Conditions))
	}

	return errors.Join(problems...)
}

// watched is a Watch with its selectors parsed. It does not change after newWatched.
type watched struct {
	watch.Watch

	// name identifies the watch in logs and errors.
	name string
	// objects is applied by the API server, namespaces by the source.
	objects, namespaces labels.Selector
	// within is the only namespace, if there is one, and without those that are left out.
	within  string
	without []string
}

func newWatched(w watch.Watch, opts *Options) *watched {
	w.Field = cmp.Or(w.Field, core.FieldSpec)
	return &watched{
		Watch: w, name: w.Name.String(),
		objects: selectorOf(w.Selector), namespaces: selectorOf(w.NamespaceSelector),
		within: opts.Namespace, without: opts.ExcludedNamespaces,
	}
}

func selectorOf(s watch.Selector) labels.Selector {
	selector := metav1.LabelSelector{MatchLabels: s.Labels}
	for _, r := range s.Requirements {
		selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: r.Key, Operator: metav1.LabelSelectorOperator(r.Operator), Values: r.Values,
		})
	}

	all, _ := metav1.LabelSelectorAsSelector(&selector) // Validated.
	return all
}
