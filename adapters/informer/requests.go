package informer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	acceptObjects = "application/json"
	// acceptMetadata is from the Kubernetes API concepts. A list names the kind of its items.
	acceptMetadata     = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// requests makes a [state] of each object as it is read, so that no list is in memory.
type requests struct {
	*follower

	resource *resource
	parts    parts
	// gone ends the reflector when the resource is not served.
	gone context.CancelFunc
}

func (q *requests) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			page, err := q.list(ctx, opts)
			q.note(ctx, err)
			return page, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			events, err := q.open(ctx, opts)
			switch {
			case opts.SendInitialEvents != nil && !isRetried(err): // If it fails, a list follows.
			case err == nil:
				q.works()
			default:
				q.note(ctx, err)
			}
			return events, err
		},
	}
}

// note reports a failure, if err is one. An expired version is none: the objects are listed again.
func (q *requests) note(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return
	}
	q.fails(err)
	if apierrors.IsNotFound(err) {
		q.gone()
	}
}

func (q *requests) list(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	body, err := q.stream(ctx, opts, acceptMetadataList)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return readList(body, q.parts)
}

func (q *requests) open(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	body, err := q.stream(ctx, opts, acceptMetadata)
	if err != nil {
		return nil, err
	}
	// After a broken event, the objects are listed again.
	broken := apierrors.NewClientErrorReporter(http.StatusInternalServerError, "watch", "")
	lists := opts.SendInitialEvents != nil
	f := &frames{body: body, json: json.NewDecoder(body), parts: q.parts, lists: lists, works: q.works}
	return watch.NewStreamWatcher(f, broken), nil
}

func (q *requests) stream(ctx context.Context, opts metav1.ListOptions, metadata string) (io.ReadCloser, error) {
	opts.LabelSelector = q.watch.objects.String()
	opts.FieldSelector = q.fieldSelector()
	accept := acceptObjects
	if q.parts.generation {
		accept = metadata
	}
	return q.client.Get().AbsPath(q.path()).SetHeader("Accept", accept).
		SpecificallyVersionedParams(&opts, metav1.ParameterCodec, metav1.SchemeGroupVersion).Stream(ctx)
}

func (q *requests) path() string {
	path := groupVersionPath(q.resource.GroupVersion())
	if q.watch.within != "" {
		path += "/namespaces/" + q.watch.within
	}
	return path + "/" + q.resource.Resource
}

// fieldSelector leaves out the excluded namespaces. Objects without namespace have no such field.
func (q *requests) fieldSelector() string {
	field := "metadata.namespace"
	if q.resource.isNamespaces() {
		field = "metadata.name"
	} else if !q.resource.namespaced {
		return ""
	}
	var terms []fields.Selector
	for _, namespace := range q.watch.without {
		terms = append(terms, fields.OneTermNotEqualSelector(field, namespace))
	}
	return fields.AndSelectors(terms...).String()
}

func (r *resource) isNamespaces() bool { return r.Group == "" && r.Resource == "namespaces" }

type list struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []runtime.Object
}

func (l *list) DeepCopyObject() runtime.Object { return l }

func readList(body io.Reader, p parts) (*list, error) {
	l, in := &list{}, json.NewDecoder(body)
	var raw json.RawMessage
	read := func() error {
		raw = raw[:0]
		if err := in.Decode(&raw); err != nil {
			return err
		}
		item, err := p.read(raw)
		l.Items = append(l.Items, item)
		return err
	}
	err := members(in, '{', func() error {
		switch name, err := in.Token(); {
		case err != nil:
			return err
		case name == "metadata":
			return in.Decode(&l.ListMeta)
		case name == "items":
			return members(in, '[', read)
		default:
			return in.Decode(new(json.RawMessage))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list of the API server: %w", err)
	}
	return l, nil
}

// members calls each for the members of an object or an array. A null is an empty array.
func members(in *json.Decoder, opening json.Delim, each func() error) error {
	switch open, err := in.Token(); {
	case err != nil || open == nil && opening == '[':
		return err
	case open != opening:
		return fmt.Errorf("have %v, want %s", open, opening)
	}
	for in.More() {
		if err := each(); err != nil {
			return err
		}
	}
	_, err := in.Token()
	return err
}

type frames struct {
	body  io.Closer
	json  *json.Decoder
	parts parts
	// lists is whether the initial objects of the watch are still arriving. They prove nothing.
	lists bool
	works func()
	frame struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
}

func (f *frames) Decode() (watch.EventType, runtime.Object, error) {
	f.frame.Object = f.frame.Object[:0] // Its memory is used again.
	if err := f.json.Decode(&f.frame); err != nil {
		return "", nil, err
	}
	if f.frame.Type == watch.Error {
		var status metav1.Status
		err := json.Unmarshal(f.frame.Object, &status)
		return watch.Error, &status, err
	}
	object, err := f.parts.read(f.frame.Object)
	if err != nil {
		return "", nil, err
	}
	if f.lists = f.lists && !object.endOfList; !f.lists {
		f.works()
	}
	return f.frame.Type, object, nil
}

func (f *frames) Close() { _ = f.body.Close() }
