//! The maps of a recording for its page, read one at a time.

use pagelab_model::run::Run;
use pagelab_report::html::maps::{MAPS_MAX, MapPicture, Maps, chosen};
use pagelab_runfile::{Error, Reader};

/// Pictures of some of the maps, and what kept the others from being read.
pub fn read(reader: &Reader, run: &Run) -> (Maps, Option<Error>) {
    let mut pictures = Vec::new();
    let read = reader.each_map(&chosen(&run.maps, MAPS_MAX), |_, map| pictures.push(MapPicture::of(&map)));
    let problem = read.as_ref().err().map(ToString::to_string);
    (Maps { pictures, problem }, read.err())
}
